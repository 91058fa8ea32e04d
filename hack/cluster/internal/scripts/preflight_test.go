package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// machine is what the script is to see of one.
type machine struct {
	uid, goVersion, toolchain string
	freeKB                    string
	// without are files of packages that are missing; all others are there.
	without []string
	// apt brings the files on request, noApt has no such program.
	apt   bool
	noApt bool
	env   []string
}

func TestPreflightNamesAllThatIsMissingAtOnce(t *testing.T) {
	const plenty = "99999999"
	bare := []string{"/usr/bin/gcc", "/usr/sbin/nft", "/usr/sbin/haproxy"}
	cases := map[string]struct {
		on      machine
		args    string
		wantErr bool
		want    []string
		not     []string
	}{
		"a machine that has everything": {
			on: machine{uid: "0", goVersion: "go1.26.1", freeKB: plenty}, args: "test kernel", want: []string{"all there"},
		},
		"a bare one, root, asked to change nothing": {
			on: machine{uid: "0", goVersion: "go1.26.1", freeKB: plenty, without: bare}, args: "--check test kernel race", wantErr: true,
			want: []string{"apt-get install --no-install-recommends -y gcc nftables haproxy\n"}, not: []string{"sudo"},
		},
		"root, Go, disk and packages together": {
			on: machine{uid: "7", goVersion: "go1.20", freeKB: "1048576", without: bare}, args: "test build images up", wantErr: true,
			want: []string{"needs root", "needs Go 1.26", "needs 9 GB", "has 1 GB", "sudo apt-get install --no-install-recommends -y gcc nftables haproxy"},
		},
		"an older Go that may not fetch another": {
			on: machine{uid: "0", goVersion: "go1.25.3", toolchain: "local", freeKB: plenty}, args: "test", wantErr: true, want: []string{"is go1.25.3"},
		},
		"an older Go that fetches the one of go.mod": {
			on: machine{uid: "0", goVersion: "go1.25.3", freeKB: plenty}, args: "test", want: []string{"all there"},
		},
		"without root the kernel's tests and their packages are left out": {
			on: machine{uid: "7", goVersion: "go1.26.1", freeKB: plenty, without: bare[1:]}, args: "test kernel",
			want: []string{"not root", "are skipped", "all there"},
		},
		"without root where they must run": {
			on:   machine{uid: "7", goVersion: "go1.26.1", freeKB: plenty, env: []string{"REQUIRE_KERNEL=1"}},
			args: "test kernel", wantErr: true, want: []string{"need root"},
		},
		"no Debian": {
			on: machine{uid: "0", goVersion: "go1.26.1", freeKB: plenty, without: bare, noApt: true}, args: "test kernel race", wantErr: true,
			want: []string{"install the packages that contain: gcc (", "nft ("}, not: []string{"apt-get"},
		},
		"root with apt installs and names them": {
			on: machine{uid: "0", goVersion: "go1.26.1", freeKB: plenty, without: bare, apt: true}, args: "test kernel race",
			want: []string{"installing with apt-get: gcc nftables haproxy", "all there"},
		},
		"apt fails": {
			on: machine{uid: "0", goVersion: "go1.26.1", freeKB: plenty, without: bare}, args: "test kernel race", wantErr: true,
			want: []string{"E: no network", "could not install: gcc nftables haproxy"},
		},
		"a cache where the node has files of its own": {
			on:   machine{uid: "0", goVersion: "go1.26.1", freeKB: plenty, env: []string{"XDG_CACHE_HOME=/var/lib/ci/.cache"}},
			args: "up", wantErr: true, want: []string{"the cache /var/lib/ci/.cache/", "XDG_CACHE_HOME"},
		},
		"a step that is none": {on: machine{uid: "0", goVersion: "go1.26.1", freeKB: plenty}, args: "tets", wantErr: true, want: []string{"no step tets"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			out, err := preflight(t, c.on, strings.Fields(c.args)...)
			if (err != nil) != c.wantErr {
				t.Errorf("error %v", err)
			}
			says(t, out, c.want, c.not)
		})
	}
}

// says checks what an output must and must not have in it.
func says(t *testing.T, out string, want, not []string) {
	t.Helper()
	for _, part := range want {
		if !strings.Contains(out, part) {
			t.Errorf("does not say %q:\n%s", part, out)
		}
	}
	for _, part := range not {
		if strings.Contains(out, part) {
			t.Errorf("says %q:\n%s", part, out)
		}
	}
}

func TestPackagesStartNoServiceWhileTheyAreInstalled(t *testing.T) {
	root := packagesTree(t, []string{"/usr/bin/gcc"})
	script := `#!/bin/bash
[[ $1 == update ]] && exit
` + root + `/usr/sbin/policy-rc.d haproxy start; [[ $? == 101 ]] && touch ` + root + `/usr/bin/gcc
`
	on := machine{uid: "0", goVersion: "go1.26.1", freeKB: "99999999"}
	programs := fakes(t, on, root)
	write(t, filepath.Join(programs, "apt-get"), script)
	if out, err := runPreflight(t, on, programs, root, "race"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(root, "usr/sbin/policy-rc.d")); !os.IsNotExist(err) {
		t.Errorf("the policy is still there: %v", err)
	}
}

func preflight(t *testing.T, on machine, args ...string) (string, error) {
	t.Helper()
	root := packagesTree(t, on.without)
	return runPreflight(t, on, fakes(t, on, root), root, args...)
}

func runPreflight(t *testing.T, on machine, programs, root string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "../../../preflight.sh", args...)
	cmd.Env = append([]string{"PATH=" + programs, "HOME=" + t.TempDir(), "PREFLIGHT_ROOT=" + root}, on.env...)
	out, err := cmd.CombinedOutput()
	// Of the processor, which does not count what others do meanwhile.
	if took := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(); took > time.Second {
		t.Errorf("took %s", took)
	}
	return string(out), err
}

// packagesTree has the files of all packages but some.
func packagesTree(t *testing.T, without []string) string {
	t.Helper()
	root := t.TempDir()
	for line := range strings.Lines(read(t, "../debian/packages.txt")) {
		fields := strings.Fields(line)
		if strings.HasPrefix(line, "#") || len(fields) < 4 || strings.Contains(strings.Join(without, " ")+" ", fields[1]+" ") {
			continue
		}
		file, _, _ := strings.Cut(fields[1], "|")
		write(t, filepath.Join(root, file), "")
	}
	return root
}

// fakes is a directory of programs for PATH: the machine's own except for those that identify the machine.
func fakes(t *testing.T, on machine, root string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"awk", "bash", "cat", "chmod", "dirname", "env", "grep", "head", "rm", "sed", "sort", "stat", "touch", "xargs"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "id"), "#!/bin/bash\necho "+on.uid+"\n")
	write(t, filepath.Join(dir, "go"), "#!/bin/bash\nprintf '%s\\n' "+on.goVersion+" '"+on.toolchain+"' /cache /modules\n")
	write(t, filepath.Join(dir, "df"), "#!/bin/bash\necho Filesystem; echo /dev/x 1 1 "+on.freeKB+" 1% /\n")
	if !on.noApt {
		install := "echo E: no network; exit 100"
		if on.apt {
			install = "touch"
			for _, file := range on.without {
				install += " " + root + file
			}
		}
		write(t, filepath.Join(dir, "apt-get"), "#!/bin/bash\n[[ $1 == update ]] && exit\n"+install+"\n")
	}
	return dir
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// write makes an executable file.
func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}
