//go:build !nvls

package cuda_test

const nvls = false
