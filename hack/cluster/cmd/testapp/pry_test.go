package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestPryFindsWhatItCanGetAt(t *testing.T) {
	child := exec.CommandContext(t.Context(), "sleep", "100")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	abstract := fmt.Sprintf("@pry-%d", child.Process.Pid)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", abstract)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if got := waysTo(child.Process.Pid); len(got) != 7 {
		t.Errorf("its own child can be got at by %v", got)
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"pry", "-max", "2"}, &out, &out); err != nil {
		t.Fatal(err)
	}
	var f pried
	if err := json.NewDecoder(strings.NewReader(out.String())).Decode(&f); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(f.Sockets, abstract) || !slices.Contains(f.Reached, abstract) {
		t.Errorf("%s is not among what was found: %s", abstract, out.String())
	}
}
