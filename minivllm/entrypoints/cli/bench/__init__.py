"""`minivllm bench`: how fast is a server (`serve`), a batch (`latency`), a pile of prompts (`throughput`)?"""
