"""The command `minivllm`: one module per subcommand, each with `add_options(parser)` and `run(args)`."""
