module github.com/ubcoll/ubcoll

go 1.26.8

require github.com/stretchr/testify v1.11.1

require (
	github.com/BurntSushi/toml v1.6.0 // indirect
	github.com/cockroachdb/datadriven v1.0.3 // indirect
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	github.com/rogpeppe/go-internal v1.16.0 // indirect
	github.com/sbromberger/gompi v0.2.0 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)
