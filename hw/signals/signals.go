// Package signals keeps signal handlers of foreign libraries from crashing Go programs. A handler that is installed without
// SA_ONSTACK over Go's runs on goroutines' stacks, which are small.
package signals
