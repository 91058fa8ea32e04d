#!/usr/bin/env bash
# What hack/e2e.sh does in the virtual machine of E2E_KERNEL, which sees the host's files: it starts the cluster and runs the tests that
# E2E_ARGUMENTS names. All programs are built already. What is written stays in the machine's memory. With E2E_SECURITY the kernel enforces
# SELinux's or AppArmor's policy of E2E_POLICY (see security.sh) from before the first pod on, and whatever it denies to a container is a failure.
set -euo pipefail

cd "$(dirname "$0")/../.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/istio-pod-network-controller/cluster
export XDG_CACHE_HOME=/kit
kit=$XDG_CACHE_HOME/istio-pod-network-controller/cluster
E2E_SECURITY=${E2E_SECURITY:-} E2E_POLICY=${E2E_POLICY:-}
own=("$E2E_POLICY/usr/lib64/ld-linux-x86-64.so.2" --library-path "$E2E_POLICY/usr/lib/x86_64-linux-gnu") contexts=/etc/selinux/default/contexts/files/file_contexts

# load gives the kernel a policy, or containerd the program by which it does so.
load() {
  echo 0 >/proc/sys/kernel/printk_ratelimit # without a daemon for it, the kernel's log has what was denied
  case $E2E_SECURITY in
    selinux)
      cp -a "$E2E_POLICY/etc/selinux" /etc/
      mount -t selinuxfs selinuxfs /sys/fs/selinux
      dd if=/etc/selinux/default/policy/policy.33 of=/sys/fs/selinux/load bs=64M status=none ;;
    apparmor)
      cp -a "$E2E_POLICY/etc/apparmor.d" /etc/
      mount -t securityfs securityfs /sys/kernel/security
      printf noquiet >/sys/module/apparmor/parameters/audit # or rules that deny would do so silently
      printf '#!/bin/sh\nexec %s "$@"\n' "${own[*]} $E2E_POLICY/usr/sbin/apparmor_parser" >/sbin/apparmor_parser
      chmod +x /sbin/apparmor_parser ;;
  esac
}

# enforce starts the cluster, with the node's files labelled as the policy says, and a runtime that confines containers.
enforce() {
  local kc=hack/cluster/kc setting='disable_apparmor = false'
  $kc up
  if [[ $E2E_SECURITY == selinux ]]; then
    setting='enable_selinux = true'
    $kc node -- "${own[@]}" "$E2E_POLICY/usr/sbin/setfiles" -F "$contexts" /dev /etc/cni /opt/cni /run /var/lib/containerd /var/lib/kubelet /var/log
    echo 1 >/sys/fs/selinux/enforce
  fi
  $kc node -- sed -i "s/disable_apparmor = true/$setting/" /etc/containerd/config.toml
  $kc restart containerd
  export E2E_KEEP=1 # the cluster that is up
}

# denied prints what the kernel has denied to containers.
denied() { dmesg | grep -E 'avc: +denied .* scontext=[^ ]*:(container_t|spc_t):|apparmor="DENIED"' || true; }

# What a container may not do, to show at the end that denials are seen.
declare -A forbidden=([selinux]='runcon system_u:system_r:container_t:s0:c1,c2 true'
  [apparmor]='echo changeprofile cri-containerd.apparmor.d >/proc/self/attr/current && readlink /proc/1/ns/net')

if [[ $E2E_SECURITY ]]; then load; fi
# The node's files are on a file system of their own: the machine's root is an overlay, which can carry no containers.
mkdir -p "$XDG_CACHE_HOME"
mount -t tmpfs -o size=4g kit "$XDG_CACHE_HOME"
mkdir -p "$kit"
for dir in "$cache"/*/; do
  if [[ ${dir##*/cluster/} != data* ]]; then ln -s "${dir%/}" "$kit/"; fi
done
# The script kc would ask the compiler each time whether something has changed.
cp "$cache/kc" "$kit/kc"
rm hack/cluster/kc
printf '#!/bin/sh\nexec %s --source %s "$@"\n' "$kit/kc" "$PWD/hack/cluster" >hack/cluster/kc
chmod +x hack/cluster/kc

export E2E_BUILT=1 E2E_VALUES="${E2E_VALUES:-} --timeout 30m"
read -ra arguments <<<"$E2E_ARGUMENTS"
if [[ $E2E_SECURITY ]]; then enforce; fi
status=0
hack/e2e.sh -test.timeout 3h "${arguments[@]}" || status=$?
if [[ $E2E_SECURITY ]] && { [[ $(denied) ]] || sh -c "${forbidden[$E2E_SECURITY]}" || [[ ! $(denied) ]]; }; then
  printf 'cluster: %s has denied to containers what follows, or has not denied what it must:\n%s\n' "$E2E_SECURITY" "$(denied)"
  status=1
fi
exit $status
