"""What is known of waiting times and of shares."""
