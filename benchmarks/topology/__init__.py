"""Who is where: tasks and their addresses, towers, devices."""
