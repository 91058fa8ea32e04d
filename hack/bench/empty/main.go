// Command empty does nothing: what the start of any Go program costs.
package main

func main() {}
