// SPDX-License-Identifier: GPL-2.0 OR MIT

// Goroutines with their own stacks, channels, a map, a recovered panic.
package main

import "fmt"

func grow(n int) int {
	var frame [64]int
	frame[n%64] = n
	if n == 0 {
		return 0
	}
	return grow(n-1) + frame[n%64]
}

func try(f func()) (caught bool) {
	defer func() { caught = recover() != nil }()
	f()
	return
}

func main() {
	results := make(chan int)
	for i := 0; i < 4; i++ {
		go func() { results <- grow(200 * (i + 1)) }()
	}
	sum := 0
	for i := 0; i < 4; i++ {
		sum += <-results
	}
	fmt.Println(sum, try(func() { panic("caught") }))
}
