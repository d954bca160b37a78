"""Training: losses, schedules, the simple loop, and real runs that outlive a crash."""
