"""What this machine is: hardware, GPUs and their links, drivers, limits of Linux, versions; a cache per machine."""
