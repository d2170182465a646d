"""What tests share and is no fixture: builders of records, images and clusters, stand-ins for runs, clocks."""
