"""What a run costs: tokens, seconds, floating-point operations and bytes, in one record that adds up."""
