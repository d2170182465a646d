"""`ab`, `calibrate`, `compare`, `baseline`, `check`, `history`: is a build slower than another?"""
