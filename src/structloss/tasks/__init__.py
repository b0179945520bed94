"""What people train on: data formats, features, models and metrics of each task."""
