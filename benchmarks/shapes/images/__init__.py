"""An image classification that is a package."""
