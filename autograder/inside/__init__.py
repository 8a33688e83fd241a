"""What runs on the student's side of the sandbox wall: it calls functions and writes data, and knows no expected value."""
