"""The engine, the images and the Compose project of this clone."""
