module example

go 1.26.0

require (
	github.com/sbromberger/gompi v0.2.0
	github.com/ubcoll/ubcoll v0.0.0
)

require golang.org/x/sys v0.49.0 // indirect

replace github.com/ubcoll/ubcoll => ../..
