package container

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

// withUsers has the sandbox say that its pod has such a user namespace, in each runtime's way.
func (f *fakeCRI) withUsers(t *testing.T, users *criv1.UserNamespace) {
	t.Helper()
	if f.sandbox.GetStatus().GetLinux().GetNamespaces().GetOptions() == nil {
		f.sandbox.Status.Linux = &criv1.LinuxPodSandboxStatus{Namespaces: &criv1.Namespace{Options: &criv1.NamespaceOption{}}}
	}
	var info map[string]any
	if err := json.Unmarshal([]byte(f.sandbox.GetInfo()["info"]), &info); err != nil {
		t.Fatal(err)
	}
	config, ok := info["config"].(map[string]any)
	if !ok { // CRI-O
		f.sandbox.Status.Linux.Namespaces.Options.UsernsOptions = users
		return
	}
	config["linux"].(map[string]any)["security_context"] = criv1.LinuxSandboxSecurityContext{NamespaceOptions: &criv1.NamespaceOption{UsernsOptions: users}}
	text, err := json.Marshal(info)
	if err != nil {
		t.Fatal(err)
	}
	f.sandbox.Info["info"] = string(text)
}

// The files of a proxy belong to its user as the node sees it.
func TestOwner_userNamespaces_isTheNodesID(t *testing.T) {
	users := func(first, length uint32) *criv1.UserNamespace {
		ids := []*criv1.IDMapping{{ContainerId: 0, HostId: first, Length: length}}
		return &criv1.UserNamespace{Mode: criv1.NamespaceMode_POD, Uids: ids, Gids: ids}
	}
	for name, c := range map[string]struct {
		users   *criv1.UserNamespace
		uid     int64
		want    int64
		refused string
	}{
		"none":                         {nil, 1337, 1337, ""},
		"the node's":                   {&criv1.UserNamespace{Mode: criv1.NamespaceMode_NODE}, 1337, 1337, ""},
		"the pod's own":                {users(131072, 65536), 1337, 132409, ""},
		"root in it":                   {users(131072, 65536), 0, 131072, ""},
		"its last user":                {users(131072, 65536), 65535, 196607, ""},
		"a user behind its last":       {users(131072, 65536), 65536, 0, "no user or group 65536"},
		"a user that it does not have": {users(131072, 1000), 1337, 0, "no user or group 1337"},
	} {
		for _, recorded := range []string{"containerd", "crio"} {
			t.Run(name+"/"+recorded, func(t *testing.T) {
				f, r := newFake(t, recorded)
				f.withUsers(t, c.users)
				spec := f.proxy()
				spec.UID, spec.GID = c.uid, 100
				uid, gid, err := r.Owner(t.Context(), spec)
				if (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
					t.Fatalf("error %v, want %q", err, c.refused)
				}
				if wantGID := c.want - c.uid + 100; err == nil && (uid != c.want || gid != wantGID) {
					t.Errorf("user %d and group %d, want %d and %d", uid, gid, c.want, wantGID)
				}
			})
		}
	}
}

func TestOwner_sandboxGone_saysSo(t *testing.T) {
	f, r := newFake(t, "containerd")
	spec := f.proxy()
	spec.Sandbox = "other"
	if _, _, err := r.Owner(t.Context(), spec); !errors.Is(err, sidecar.ErrGone) {
		t.Errorf("error %v", err)
	}
}
