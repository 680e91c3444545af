#!/usr/bin/env bash
# The first hour of a user with a cluster, from docs/quick-start.md and docs/install.md by copy and paste, until TrainJobs
# have finished and Signalbox is uninstalled; first-hour.sh bundled|kubeflow. It prints how long each part took. What it
# changes: the names of images and of Kueue's chart, because there is no network here; and what the pages say of values.
# make first-hour runs it beside real nodes.
. "$(dirname "$0")/registry.sh"
cp -r "$repository/charts" "$repository/examples" "$work"
sed -i -e 's#python:3.13-slim#signalbox.test/training:1#' -e 's/^\( *\)- python$/\1- python3/' \
	"$work/examples/quick-start/trainjobs.yaml"
began "build and push the image"
(cd "$repository" && make image VERSION=v0.0.0-first PUSH=$registry/signalbox)
cd "$work"
began "let Kueue leave TrainJobs to Signalbox"
kueue
began "install Signalbox"
values="--set image.repository=$registry/signalbox,image.tag=v0.0.0-first"
[ "$1" = bundled ] || values+=,trainer.enabled=false
pasted docs/quick-start.md '2. Install Signalbox' -e "s#^helm install .*#& $values#"
began "run TrainJobs"
pasted docs/quick-start.md '3. Run TrainJobs on CPUs' -e '/^kubectl delete/d'
kubectl -n quick-start logs -l jobset.sigs.k8s.io/jobset-name=second --prefix --tail=1 | grep 'step 60, loss'
kubectl delete --wait=true --timeout=2m -f examples/quick-start/trainjobs.yaml -f examples/quick-start/queues.yaml
began "upgrade, roll back, uninstall"
pasted docs/install.md 'Upgrade, roll back, uninstall'
began ""
echo "The first hour took $SECONDS s."
