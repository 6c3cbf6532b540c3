"""What every folder may use and no user imports."""
