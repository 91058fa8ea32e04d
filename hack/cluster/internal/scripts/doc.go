// Package scripts holds the tests of the shell scripts in hack/. There is no code in it.
package scripts
