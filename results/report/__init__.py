"""Tables, plots and the HTML page of stored records."""
