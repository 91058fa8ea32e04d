package docker

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"

	"istio-pod-network-controller/internal/podnet"
)

func TestNetNSOf(t *testing.T) {
	sandbox, joined := inspected(t, "inspect-sandbox.json"), inspected(t, "inspect-container.json")
	tests := map[string]struct {
		in        container.InspectResponse
		want      string
		wantError string
	}{
		"a recorded sandbox: the path, not the pid":               {in: sandbox, want: "/var/run/docker/exec/netns/acd009690ceb"},
		"a recorded container that joined the sandbox's: the pid": {in: joined, want: "/proc/26479/ns/net"},
		"nothing": {wantError: "SandboxKey is empty, and State.Pid: pid 0"},
		"a negative pid": {
			in:        container.InspectResponse{State: &container.State{Pid: -1}},
			wantError: "State.Pid: pid -1",
		},
		"a relative path": {
			in:        container.InspectResponse{NetworkSettings: &container.NetworkSettings{SandboxKey: "netns/x"}},
			wantError: `SandboxKey "netns/x"`,
		},
		"a path longer than any": {
			in:        container.InspectResponse{NetworkSettings: &container.NetworkSettings{SandboxKey: "/" + strings.Repeat("x", maxPathBytes)}},
			wantError: "is not absolute and plain",
		},
		"a path with a NUL": {
			in:        container.InspectResponse{NetworkSettings: &container.NetworkSettings{SandboxKey: "/run/x\x00y"}},
			wantError: `SandboxKey "/run/x\x00y"`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := netNSOf(&tt.in)
			if tt.wantError == "" {
				if err != nil || got != tt.want {
					t.Errorf("got %q, error %v, want %q", got, err, tt.want)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.wantError) || got != "" {
				t.Errorf("got %q, error %v, want an error that contains %q", got, err, tt.wantError)
			}
		})
	}
}

func TestAttemptOf(t *testing.T) {
	tests := map[string]struct {
		in   []string
		want uint32
	}{
		"a sandbox":                       {in: []string{"/k8s_POD_web_default_uid-1_12"}, want: 12},
		"a name taken before":             {in: []string{"/k8s_POD_web_default_uid-1_3_5f0c6a3e"}, want: 3},
		"a link and the container's name": {in: []string{"/other/web", "/k8s_POD_web_default_uid-1_4"}, want: 4},
		"an application's container":      {in: []string{"/k8s_app_web_default_uid-1_5"}},
		"no number":                       {in: []string{"/k8s_POD_web_default_uid-1_x"}},
		"a negative number":               {in: []string{"/k8s_POD_web_default_uid-1_-1"}},
		"a number that no attempt can be": {in: []string{"/k8s_POD_web_default_uid-1_4294967296"}},
		"too many parts":                  {in: []string{"/k8s_POD_web_default_uid-1_1_2_3"}},
		"another name":                    {in: []string{"/web"}},
		"no name":                         {},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := attemptOf(tt.in...); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

// FuzzAnswer holds the promise that callers open the path on, whatever an Engine answers: it is absolute and plain, or it
// is a process's.
func FuzzAnswer(f *testing.F) {
	f.Add(`{"Id":"a","Names":["/k8s_POD_pod_ns_uid-1_1"],"State":{"Running":true,"Pid":7},"NetworkSettings":{"SandboxKey":"/run/docker/netns/a"},` +
		`"HostConfig":{"NetworkMode":"none"},"Config":{"Labels":{"io.kubernetes.pod.uid":"uid-1","io.kubernetes.docker.type":"podsandbox"}}}`)
	f.Add(`{"Id":"a","State":null,"NetworkSettings":null,"HostConfig":null,"Config":null}`)
	f.Fuzz(func(t *testing.T, raw string) {
		var listed container.Summary
		if json.Unmarshal([]byte(raw), &listed) == nil {
			_ = newest([]container.Summary{listed, listed}, podnet.Sandbox{UID: podUID})
		}
		var c container.InspectResponse
		if json.Unmarshal([]byte(raw), &c) != nil {
			return
		}
		_, _, _ = check(&c, "a", podnet.Sandbox{UID: podUID}), handlerOf(&c), createdAt(&c)
		path, err := netNSOf(&c)
		if err != nil && path != "" {
			t.Errorf("path %q with error %v", path, err)
		}
		if err == nil && (!filepath.IsAbs(path) || strings.ContainsRune(path, 0) || len(path) > maxPathBytes || strings.HasPrefix(path, "/proc/-")) {
			t.Errorf("path %q from %q", path, raw)
		}
	})
}

func TestCreatedAt(t *testing.T) {
	tests := map[string]int64{
		"2026-11-21T19:36:46.000000007Z": 1795289806000000007,
		"1969-12-31T23:59:59Z":           0, "9999-01-01T00:00:00Z": 0, "yesterday": 0, "": 0,
	}
	for in, want := range tests {
		if got := createdAt(&container.InspectResponse{Created: in}); got != want {
			t.Errorf("%q: got %d, want %d", in, got, want)
		}
	}
}

func TestHandlerOf(t *testing.T) {
	recorded := inspected(t, "inspect-sandbox.json")
	tests := map[string]struct {
		in   container.InspectResponse
		want string
	}{
		"a recorded sandbox of the default runtime": {in: recorded},
		"no host configuration":                     {},
		"runc by its newer name":                    {in: container.InspectResponse{HostConfig: &container.HostConfig{Runtime: "io.containerd.runc.v2"}}},
		"another runtime":                           {in: container.InspectResponse{HostConfig: &container.HostConfig{Runtime: "kata"}}, want: "kata"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := handlerOf(&tt.in); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
