package sidecars

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/test/kerneltest"
)

// needRoot is for tests that give files to other users.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		kerneltest.SkipOrFail(t, "files can be given to others as root only")
	}
}

// mustOwn fails the test if what the first proxy sees, links aside, belongs to another user or group than its own.
func (n *fakeNode) mustOwn(t *testing.T, uid, gid uint32) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	seen := 0
	for _, m := range n.containers["c001"].spec.Mounts {
		if !m.Relabel { // a directory of the node
			continue
		}
		err := filepath.WalkDir(m.Host, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.Type() == fs.ModeSymlink {
				return err
			}
			var info unix.Stat_t
			if err := unix.Lstat(path, &info); err != nil {
				return err
			}
			if seen++; info.Uid != uid || info.Gid != gid {
				t.Errorf("%s belongs to user %d and group %d, want %d and %d", path, info.Uid, info.Gid, uid, gid)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if seen < len(n.containers["c001"].spec.Mounts) {
		t.Errorf("it sees %d files and directories", seen)
	}
}

// In a pod with hostUsers: false the proxy is another user of the node, who can read and write what is the proxy's, later secrets as well.
func TestUserNamespace_files_areTheNodesUsers(t *testing.T) {
	needRoot(t)
	for name, mesh := range map[string]bool{"a proxy": false, "Istio's": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				if mesh {
					withMesh(n)
				} else {
					withSecrets(n)
				}
				n.ownUsers, n.profile.Spec.RunAsUser, n.profile.Spec.RunAsGroup = true, 1337, 1338
				m, stop := agent()
				defer stop()
				s := sandboxOf("u1")
				m.Follow(s)
				n.after(time.Second)
				n.mustOwn(t, firstUser+1337, firstUser+1338)
				if got := m.Homes.Of(s.Key()).Notes().Users(); !slices.Equal(got, []uint32{firstUser + 1337}) {
					t.Errorf("on the node it is user %d", got)
				}
				if spec := n.containers["c001"].spec; spec.UID != 1337 || spec.GID != 1338 {
					t.Errorf("in its pod it is user %d, group %d", spec.UID, spec.GID)
				}
				n.change(func() {
					n.vault.secret, n.meshed.roots = map[string][]byte{"tls.crt": []byte("crt-2")}, map[string][]byte{"root-cert.pem": []byte("root-2")}
				})
				n.after(2 * secretsPeriod)
				n.mustOwn(t, firstUser+1337, firstUser+1338)
			})
		})
	}
}

// A proxy whose user the pod does not have is not made, and the ManagedProxy says so.
func TestUserNamespace_userIsMissing_saysSo(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.ownUsers, n.failures["owner"] = true, errors.New("the pod's user namespace has no user 1337")
		m, stop := agent()
		defer stop()
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		if said := n.mustSay(t, "u1", v1alpha1.Failed, false); !strings.Contains(said.Message, "no user 1337") || n.next != 0 {
			t.Errorf("%d proxies were made, and the ManagedProxy says %+v", n.next, said)
		}
	})
}
