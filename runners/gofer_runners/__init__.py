"""The runners that come with gofer; each is found through its entry point, like anybody's."""
