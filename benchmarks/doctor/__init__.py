"""Is the machine quiet, and where does the step time go?"""
