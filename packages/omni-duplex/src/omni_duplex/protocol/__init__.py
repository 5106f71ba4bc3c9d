"""What goes over the socket: dialects, and the objects of the realtime API."""
