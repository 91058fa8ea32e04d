package docker

import (
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
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
		"nothing": {wantError: "SandboxKey is empty, and State.Pid is 0"},
		"a negative pid": {
			in:        container.InspectResponse{State: &container.State{Pid: -1}},
			wantError: "State.Pid is -1",
		},
		"a relative path": {
			in:        container.InspectResponse{NetworkSettings: &container.NetworkSettings{SandboxKey: "netns/x"}},
			wantError: `SandboxKey "netns/x"`,
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
