package cri

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"istio-pod-network-controller/internal/podnet"
)

func TestNetNSOf(t *testing.T) {
	tests := map[string]struct {
		in        string
		want      string
		wantError string
	}{
		"the path of the spec, not the pid": {
			in:   `{"pid":7,"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/run/netns/x"}]}}}`,
			want: "/run/netns/x",
		},
		"the path of another kind of namespace is not taken": {
			in: `{"pid":7,"runtimeSpec":{"linux":{"namespaces":[{"type":"ipc","path":"/run/ipcns/x"},` +
				`{"type":"network","path":"/run/netns/x"}]}}}`,
			want: "/run/netns/x",
		},
		"a namespace that the runtime made for the process: the pid": {
			in:   `{"pid":7,"runtimeSpec":{"linux":{"namespaces":[{"type":"network"}]}}}`,
			want: "/proc/7/ns/net",
		},
		"no spec: the pid":               {in: `{"pid":7,"runtimeSpec":null}`, want: "/proc/7/ns/net"},
		"no spec and no pid":             {in: `{"pid":0}`, wantError: "no path of type network: pid 0"},
		"no path and no pid":             {in: `{"runtimeSpec":{"linux":{"namespaces":[{"type":"network"}]}}}`, wantError: "pid 0"},
		"a negative pid":                 {in: `{"pid":-1}`, wantError: "pid -1"},
		"a spec without a network entry": {in: `{"pid":7,"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"}]}}}`, wantError: "host's network"},
		"a spec without linux":           {in: `{"pid":7,"runtimeSpec":{}}`, wantError: "host's network"},
		"a relative path": {
			in:        `{"pid":7,"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"netns/x"}]}}}`,
			wantError: `path "netns/x"`,
		},
		"a path with a NUL": {
			in:        `{"pid":7,"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"/run/netns/x\u0000y"}]}}}`,
			wantError: `path "/run/netns/x\x00y"`,
		},
		"nothing":             {in: ``, wantError: "decode verbose status"},
		"cut short":           {in: `{"pid":7,"runtimeSpec":{"linux"`, wantError: "decode verbose status"},
		"a pid that is text":  {in: `{"pid":"7"}`, wantError: "decode verbose status"},
		"a pid above Linux's": {in: `{"pid":4194305}`, wantError: "pid 4194305 is not a process"},
		"a path longer than any": {
			in:        `{"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"/` + strings.Repeat("x", maxPathBytes) + `"}]}}}`,
			wantError: "is not absolute and plain",
		},
		"a pid too large":     {in: `{"pid":99999999999999999999}`, wantError: "decode verbose status"},
		"a list, not a map":   {in: `[]`, wantError: "decode verbose status"},
		"null":                {in: `null`, wantError: "no network namespace"},
		"two answers in line": {in: `{"pid":7}{"pid":8}`, wantError: "decode verbose status"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := netNSOf(map[string]string{infoKey: tt.in})
			if tt.wantError == "" {
				if err != nil || got != tt.want {
					t.Errorf("got %q, error %v, want %q", got, err, tt.want)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.wantError) || errors.Is(err, podnet.ErrNotReady) || got != "" {
				t.Errorf("got %q, error %v, want a lasting error that contains %q", got, err, tt.wantError)
			}
		})
	}
}

// FuzzNetNSOf holds the promise that callers open the path on: whatever the runtime says, it is absolute and plain. The
// seeds are short because the fuzzer spends a minute on minimising each long input.
func FuzzNetNSOf(f *testing.F) {
	f.Add(`{"pid":7,"netNamespaceClosed":false,"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"},` +
		`{"type":"network","path":"/var/run/netns/cni-493a7cb7"}]}},"cniResult":{"Interfaces":{}}}`)
	f.Add(`{"pid":7,"runtimeSpec":{"linux":{"namespaces":[{"type":"network"}]}}}`)
	f.Add(`{"pid":-7,"netNamespaceClosed":true,"runtimeSpec":null}`)
	f.Fuzz(func(t *testing.T, raw string) {
		path, err := netNSOf(map[string]string{infoKey: raw})
		if err != nil && path != "" {
			t.Errorf("path %q with error %v", path, err)
		}
		if err == nil && (!filepath.IsAbs(path) || strings.ContainsRune(path, 0) || len(path) > maxPathBytes || strings.HasPrefix(path, "/proc/-")) {
			t.Errorf("path %q from %q", path, raw)
		}
	})
}

// netNSOf is what Find makes of a verbose status.
func netNSOf(info map[string]string) (string, error) {
	v, err := decodeInfo(info)
	if err != nil {
		return "", err
	}
	return v.netNS()
}
