package commands

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/cmdline"
)

const root = "../.."

const podYAML = `
apiVersion: v1
kind: Pod
metadata:
  name: cart
  namespace: shop
  annotations: {istio-pod-network-controller/initialize: "true"}
spec:
  containers: [{name: app}, {name: istio-proxy}]
`

// call runs a command line that has the commands, as on a node, and gives its exit code and what it wrote.
func call(t *testing.T, stdin string, args ...string) (code int, out, errOut string) {
	t.Helper()
	program := cmdline.Root(agentstatus.Name)
	program.AddCommand(Program{OnNode: &OnNode{StandIn: &cobra.Command{Use: "stand-in"}}}.Commands()...)
	var o, e bytes.Buffer
	code = cmdline.Run(program, args, strings.NewReader(stdin), &o, &e)
	return code, o.String(), e.String()
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func text(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// every returns the first group of each match, sorted and without duplicates.
func every(pattern, in string) []string {
	found := map[string]bool{}
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(in, -1) {
		found[match[1]] = true
	}
	return slices.Sorted(maps.Keys(found))
}
