"""What happens at one instant: the state at an event, impacts, forces of closed contacts, and where a force jumps."""
