module example/09-mlp

go 1.26.0

require (
	github.com/ubcoll/ubcoll v0.0.0
	gonum.org/v1/gonum v0.17.0
)

require (
	github.com/sbromberger/gompi v0.2.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/ubcoll/ubcoll => ../..
