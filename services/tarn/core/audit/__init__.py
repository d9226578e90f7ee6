"""What a whole lake must satisfy, judged over a model of it: pure, and shared with nothing that writes."""
