// Package kerneltest says what a test needs of the machine, and makes pods without a cluster. Only tests import it.
package kerneltest

import (
	"os"
	"testing"
)

// Root skips a test that an ordinary user cannot run, and fails it where REQUIRE_KERNEL=1 says that it must run.
func Root(t *testing.T) {
	t.Helper()
	need(t, os.Getuid() == 0, "needs root")
}

// File skips or fails a test likewise when a program that it runs is not installed.
func File(t *testing.T, path string) {
	t.Helper()
	_, err := os.Stat(path)
	need(t, err == nil, "needs "+path)
}

func need(t *testing.T, ok bool, message string) {
	t.Helper()
	switch {
	case ok:
	case os.Getenv("REQUIRE_KERNEL") == "1":
		t.Fatal(message)
	default:
		t.Skip(message)
	}
}
