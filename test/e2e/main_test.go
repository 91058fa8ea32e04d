package e2e

import (
	"fmt"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if file := os.Getenv(envRecord); file != "" {
		if err := record(file); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", envRecord, err)
			os.Exit(1)
		}
		return
	}
	if err := ready(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\nRun hack/e2e.sh, which makes a cluster and runs the tests inside it.\n", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// ready starts what the tests share. All of it ends with the process.
func ready() error {
	if err := checkBackend(); err != nil {
		return err
	}
	if _, err := shared(); err != nil {
		return err
	}
	return serveWorld()
}
