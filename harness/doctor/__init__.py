"""The day before: looks at all that a course needs, and says what is wrong and the command that mends it."""
