"""What a person does, in Chromium, on a whole portal with its sandbox."""
