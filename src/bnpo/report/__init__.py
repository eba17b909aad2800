"""What runs and evaluations have left, read and shown. Stands on their files alone; nothing else imports it."""
