"""What the service says about itself: metrics, and storing them in itself."""
