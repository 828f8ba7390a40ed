"""What a real program needs besides the model: files, checks, speed, commands."""
