// Command program is what the tests make an image of.
package main

func main() {}
