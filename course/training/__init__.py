"""Training loops: one generator per method. Each step yields a frozen record; the operators of a method are its arguments."""
