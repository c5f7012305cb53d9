"""Images: decoding, transforms, and splits whose samples are decoded when they are read."""
