"""The loop: Lightning's, with our objectives, checkpoints and model directories."""
