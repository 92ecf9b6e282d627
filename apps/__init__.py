"""The domain and its pages; never touches the network."""
