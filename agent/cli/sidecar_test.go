//go:build !nosidecars

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"istio-pod-network-controller/internal/cmdline"
)

func TestTheLogOfAProxy(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "shop_cart-1_u1", "managed-proxy")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "0.log"), []byte("2026 stdout F one\n2026 stdout F two\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errOut := call(t, "", "sidecar", "logs", "shop/cart-1", "--log-root="+root, "--tail=1")
	if code != 0 || out != "two\n" {
		t.Errorf("exit status %d, %q, %q", code, out, errOut)
	}
	// Without --timeout this would follow the log for ever.
	code, out, errOut = call(t, "", "sidecar", "logs", "shop/cart-1", "--log-root="+root, "--follow", "--timeout=1ms")
	if code != 0 || out != "one\ntwo\n" {
		t.Errorf("with its time: exit status %d, %q, %q", code, out, errOut)
	}
}

func TestAPodIsNamedWithItsNamespace(t *testing.T) {
	for _, pod := range []string{"cart-1", "shop/", "/cart-1", "shop/cart/1", "../shop/cart", "shop/..", "shop/*", "Shop/cart", ""} {
		for _, args := range [][]string{{"logs", pod}, {"exec", pod, "--", "ls"}} {
			if code, _, errOut := call(t, "", append([]string{"sidecar"}, args...)...); code != cmdline.ExitError || !strings.Contains(errOut, "want NAMESPACE/POD") {
				t.Errorf("%q: exit status %d, %q", args, code, errOut)
			}
		}
	}
	if code, _, errOut := call(t, "", "sidecar", "exec", "shop/cart-1"); code != cmdline.ExitError || !strings.Contains(errOut, "at least 2 arg") {
		t.Errorf("without a command: exit status %d, %q", code, errOut)
	}
}

// A terminal that is none would leave a program that waits for keys.
func TestATerminalIsWanted(t *testing.T) {
	for want, args := range map[string][]string{
		"--tty needs --stdin":      {"-t"},
		"the input is no terminal": {"-i", "-t"},
	} {
		args = append([]string{"sidecar", "exec", "shop/cart-1"}, append(args, "--", "sh")...)
		if code, _, errOut := call(t, "", args...); code != cmdline.ExitError || !strings.Contains(errOut, want) {
			t.Errorf("%q: exit status %d, %q", args, code, errOut)
		}
	}
}

// A runtime that cannot be asked has not said that anything has ended.
func TestSidecarCleanNeedsTheRuntime(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "u1.s1"), 0o700); err != nil {
		t.Fatal(err)
	}
	code, out, errOut := call(t, "", "sidecar", "clean", "--runtime-endpoint=unix://"+filepath.Join(root, "none.sock"), "--sidecar-root="+root, "--shared-root="+root)
	if code != cmdline.ExitError || out != "" || !strings.Contains(errOut, "none.sock") {
		t.Errorf("exit status %d, %q, %q", code, out, errOut)
	}
	if _, err := os.Stat(filepath.Join(root, "u1.s1")); err != nil {
		t.Error(err)
	}
}

func TestSidecarsNeedARuntimeWithCRI(t *testing.T) {
	for runtime, want := range map[string]string{
		"docker": "--sidecars: the runtime docker has no CRI", "containerd": "", "crio": "", "auto": "",
	} {
		// The missing node's name keeps the agent from running.
		_, _, errOut := call(t, "", "run", "--sidecars", "--agent-namespace=mesh", "--runtime="+runtime)
		if got := strings.Contains(errOut, "--sidecars"); got != (want != "") || !strings.Contains(errOut, want) {
			t.Errorf("%s: %s", runtime, errOut)
		}
	}
}

// The Lease by which agents elect one of them has a namespace.
func TestSidecarsNeedTheAgentsNamespace(t *testing.T) {
	for namespace, want := range map[string]bool{"": true, "mesh": false} {
		_, _, errOut := call(t, "", "run", "--sidecars", "--agent-namespace="+namespace)
		if got := strings.Contains(errOut, "--sidecars: --agent-namespace must say where the agents' Lease is"); got != want {
			t.Errorf("%q: %s", namespace, errOut)
		}
	}
}

func TestTheDirectoriesOfSidecarsAreAbsolute(t *testing.T) {
	for dir, ok := range map[string]bool{
		defaultSidecarRoot: true, "/run/a": true, "": false, "/": false, "a": false, "/run/": false, "/run/../etc": false,
	} {
		for _, flag := range []string{"--sidecar-root", "--sidecar-secrets", "--shared-root"} {
			ok := ok || dir == "" && flag == "--shared-root" // which switches shared proxies off
			_, _, errOut := call(t, "", "run", flag+"="+dir)
			if got := !strings.Contains(errOut, flag); got != ok {
				t.Errorf("%s=%q: accepted: %t, want %t: %s", flag, dir, got, ok, errOut)
			}
		}
	}
}
