package cri

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestSandboxPathsAreTheMachines(t *testing.T) {
	meta := &runtime.PodSandboxMetadata{Namespace: "bookinfo", Name: "reviews", Uid: "u1"}
	tests := map[string]struct {
		in   *runtime.PodSandboxStatusResponse
		want Sandbox
	}{
		"pod with a network of its own": {
			in: &runtime.PodSandboxStatusResponse{
				Status: &runtime.PodSandboxStatus{
					Id: "abc", Metadata: meta,
					Network: &runtime.PodSandboxNetworkStatus{Ip: "10.244.0.5", AdditionalIps: []*runtime.PodIP{{Ip: "fd00:10:244::5"}}},
				},
				Info: map[string]string{"info": `{"pid":42,"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/var/run/netns/cni-1"}]}}}`},
			},
			want: Sandbox{
				Namespace: "bookinfo", Name: "reviews", UID: "u1", ID: "abc", PID: 42,
				NetNS: "/proc/7/root/run/netns/cni-1", IPs: []string{"10.244.0.5", "fd00:10:244::5"},
			},
		},
		"host-network pod": {
			in: &runtime.PodSandboxStatusResponse{
				Status: &runtime.PodSandboxStatus{Id: "def", Metadata: meta},
				Info:   map[string]string{"info": `{"pid":43,"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"}]}}}`},
			},
			want: Sandbox{Namespace: "bookinfo", Name: "reviews", UID: "u1", ID: "def", PID: 43},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := sandbox(tt.in, "/proc/7/root")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestStatusWithoutVerboseInfoIsAnError(t *testing.T) {
	if _, err := sandbox(&runtime.PodSandboxStatusResponse{Status: &runtime.PodSandboxStatus{}}, ""); err == nil {
		t.Error("no error")
	}
}
