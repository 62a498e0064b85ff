//! Volumes of the plugin on object storage, in a directory of the host (`file://`).

use std::fs;

use serde_json::{Value, json};

use super::Plugin;

#[test]
fn a_volume_on_object_storage_is_made_with_its_name() {
    let Some(mut plugin) = Plugin::new() else { return };
    let _daemon = plugin.start();
    let url = format!("file://{}/bucket", plugin.rig.root.display());
    let create = json!({"Name": "data", "Opts": {"source": url, "size": "1G", "compress": "lz4", "write-bps": "100M"}});
    plugin.ok("VolumeDriver.Create", &create);
    let path = plugin.mount("data", "c1");
    fs::write(path.join("a"), "a").unwrap();
    let pid = plugin.mount_process(&path);
    let status = plugin.rig.status();
    assert_eq!(status["volumes"][0]["limits"][0]["wbps"], 100 << 20, "{pid:?}: {status}");
    plugin.unmount("data", "c1").unwrap();
    let info = plugin.rig.run(&["info", "--json", &url]).ok();
    let info: Value = serde_json::from_str(&info.stdout).unwrap();
    assert_eq!(
        (&info["files"], &info["holder"], &info["compression"]),
        (&json!(1), &Value::Null, &json!("lz4"))
    );
    // Another name for the same volume, which is there.
    plugin.ok("VolumeDriver.Create", &json!({"Name": "again", "Opts": {"source": url}}));
    let path = plugin.mount("again", "c1");
    assert_eq!(fs::read(path.join("a")).unwrap(), b"a");
    plugin.unmount("again", "c1").unwrap();
}
