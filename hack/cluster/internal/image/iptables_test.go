package image

import (
	"os"
	"path"
	"strings"
	"testing"
)

// Every name leads to a program that is packed, with the loader and the extensions that it wants; a machine that lacks one is
// told which.
func TestIptablesComesWithBothFlavoursAndAllTheyLoad(t *testing.T) {
	entries, err := Iptables(t.Context())
	for _, program := range []string{"/usr/sbin/xtables-nft-multi", "/usr/sbin/xtables-legacy-multi"} {
		if _, missing := os.Stat(program); missing != nil {
			if err == nil || !strings.Contains(err.Error(), program) {
				t.Errorf("%v does not name %s", err, program)
			}
			return
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	packed := map[string]Entry{}
	for _, e := range entries {
		packed[e.Path] = e
	}
	for _, name := range []string{"iptables-nft", "ip6tables-nft-restore", "iptables-legacy-save", "ip6tables-legacy-restore"} {
		link := packed["/usr/sbin/"+name]
		if _, ok := packed[path.Join("/usr/sbin", link.Link)]; link.Link == "" || !ok {
			t.Errorf("%s leads to %q, which is not packed", name, link.Link)
		}
	}
	loader, extensions := false, false
	for p := range packed {
		loader = loader || strings.Contains(p, "/ld-")
		extensions = extensions || strings.HasSuffix(p, "/xtables")
	}
	if !loader || !extensions {
		t.Errorf("the loader is packed: %t, the extensions: %t", loader, extensions)
	}
}
