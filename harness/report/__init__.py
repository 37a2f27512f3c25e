"""What people read: the terminal, the page, tables. Measures nothing and launches nothing."""
